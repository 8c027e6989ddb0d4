; Inno Setup 6.3 or newer (x64compatible): the set-up program for Windows. build.py calls: ISCC /DVersion= /DProgram= /DOut= /DPackage=
; Signing: define a sign tool named "bitsmith" on ISCC's command line (/Sbitsmith=...) and set BITSMITH_SIGN=1.
#define Name "Bitsmith"

[Setup]
AppId={{8B1E6C0B-62C1-4E8A-9C39-51D5A0B7B7F4}
AppName={#Name}
AppVersion={#Version}
AppVerName={#Name} {#Version}
AppPublisher=Bitsmith contributors
VersionInfoVersion={#Version}
DefaultDirName={autopf}\{#Name}
DefaultGroupName={#Name}
DisableProgramGroupPage=yes
; For this user without an administrator's password, or for everybody: the user chooses.
PrivilegesRequired=lowest
PrivilegesRequiredOverridesAllowed=dialog
ArchitecturesAllowed=x64compatible
ArchitecturesInstallIn64BitMode=x64compatible
MinVersion=10.0.17763
LicenseFile={#Program}\licences\LICENSE.txt
SetupIconFile=..\..\build\installer\icons\bitsmith.ico
UninstallDisplayIcon={app}\bitsmith-window.exe
OutputDir={#Out}
OutputBaseFilename={#Package}-{#Version}-windows-x64
Compression=lzma2/max
SolidCompression=yes
LZMANumBlockThreads=2
WizardStyle=modern
ChangesAssociations=yes
ChangesEnvironment=yes
CloseApplications=yes
#if GetEnv("BITSMITH_SIGN") == "1"
SignTool=bitsmith
SignedUninstaller=yes
#endif

[Tasks]
Name: "desktopicon"; Description: "{cm:CreateDesktopIcon}"; Flags: unchecked
Name: "path"; Description: "Make the command 'bitsmith' known in terminals"; Flags: unchecked

[InstallDelete]
; Files of an older version that the new one does not have would be imported all the same.
Type: filesandordirs; Name: "{app}\_internal"

[Files]
Source: "{#Program}\*"; DestDir: "{app}"; Flags: ignoreversion recursesubdirs createallsubdirs

[Icons]
Name: "{autoprograms}\{#Name}"; Filename: "{app}\bitsmith-window.exe"; AppUserModelID: "org.bitsmith.Bitsmith"
Name: "{autodesktop}\{#Name}"; Filename: "{app}\bitsmith-window.exe"; Tasks: desktopicon

[Registry]
Root: HKA; Subkey: "Software\Classes\Bitsmith.Model"; ValueType: string; ValueData: "Language model"; Flags: uninsdeletekey
Root: HKA; Subkey: "Software\Classes\Bitsmith.Model\DefaultIcon"; ValueType: string; ValueData: "{app}\bitsmith-window.exe,0"
Root: HKA; Subkey: "Software\Classes\Bitsmith.Model\shell\open\command"; ValueType: string; ValueData: """{app}\bitsmith-window.exe"" ""%1"""
Root: HKA; Subkey: "Software\Classes\.gguf\OpenWithProgids"; ValueType: string; ValueName: "Bitsmith.Model"; ValueData: ""; Flags: uninsdeletevalue
Root: HKA; Subkey: "Software\Classes\.safetensors\OpenWithProgids"; ValueType: string; ValueName: "Bitsmith.Model"; ValueData: ""; Flags: uninsdeletevalue

[Code]
function PathKey(): String;
begin
  if IsAdminInstallMode then
    Result := 'SYSTEM\CurrentControlSet\Control\Session Manager\Environment'
  else
    Result := 'Environment';
end;

function PathRoot(): Integer;
begin
  if IsAdminInstallMode then Result := HKEY_LOCAL_MACHINE else Result := HKEY_CURRENT_USER;
end;

procedure CurStepChanged(Step: TSetupStep);
var
  Path: String;
begin
  if (Step = ssPostInstall) and WizardIsTaskSelected('path') then
  begin
    if not RegQueryStringValue(PathRoot(), PathKey(), 'Path', Path) then Path := '';
    if Pos(';' + Lowercase(ExpandConstant('{app}')) + ';', ';' + Lowercase(Path) + ';') = 0 then
    begin
      if (Path <> '') and (Copy(Path, Length(Path), 1) <> ';') then Path := Path + ';';
      RegWriteExpandStringValue(PathRoot(), PathKey(), 'Path', Path + ExpandConstant('{app}'));
    end;
  end;
end;

procedure CurUninstallStepChanged(Step: TUninstallStep);
var
  Path: String;
  Place: Integer;
begin
  if (Step = usPostUninstall) and RegQueryStringValue(PathRoot(), PathKey(), 'Path', Path) then
  begin
    Place := Pos(';' + Lowercase(ExpandConstant('{app}')) + ';', ';' + Lowercase(Path) + ';');
    if Place > 0 then
    begin
      { Place counts in the string with a ';' before it, so it is where the folder begins in Path itself. }
      Delete(Path, Place, Length(ExpandConstant('{app}')) + 1);
      RegWriteExpandStringValue(PathRoot(), PathKey(), 'Path', Path);
    end;
  end;
end;
